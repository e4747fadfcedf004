"""The Jinja environment of the HTML pages."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # class names, file names and settings come from data
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["percent"] = lambda v, digits=1: "–" if v is None else f"{v:.{digits}f}"
