"""The worst and the best images."""

from ocr_panoptic.workbench.looking.ranking import ranked_images


def rows(*scores: str | None) -> list[dict[str, str]]:
    return [
        {"file_name": f"images/{name}.jpg", "misses": "1.5"} | ({"PQ": score} if score else {})
        for name, score in zip("abcdef", scores)
    ]


def names(*scores: str | None, number: int) -> list[tuple[str, str]]:
    return [(i.name[0], i.group) for i in ranked_images(rows(*scores), "PQ", number)]


def test_worst_first_best_last():
    """Scores are numbers, not texts; an image without one has no rank."""
    found = names("100.0", "9.5", None, "30", "8.5", number=1)
    assert found == [("e", "worst"), ("a", "best")]
    image, _ = ranked_images(rows("100.0", "98.5"), "PQ", 1)
    assert (image.file_name, image.score, image.losses) == ("images/b.jpg", 98.5, {"misses": 1.5})
    found = names("100.0", "9.5", None, "30", "8.5", number=2)
    assert found == [("e", "worst"), ("b", "worst"), ("d", "best"), ("a", "best")]


def test_no_image_twice():
    assert names("3", "1", "2", number=2) == [("b", "worst"), ("c", "worst"), ("a", "best")]
    assert names("3", "1", number=5) == [("b", "worst"), ("a", "worst")]
    assert names("3", "1", number=0) == []
    assert ranked_images([], "PQ", 3) == []
