"""Pictures and pages; it knows no model."""
