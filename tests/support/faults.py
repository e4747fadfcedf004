"""Collect the faults that a check of data reports."""

from collections.abc import Callable

import pytest

from ocr_panoptic.data.faults import DataFaults


def faults_of(call: Callable, *arguments: object, **options: object) -> list[str]:
    with pytest.raises(DataFaults) as error:
        call(*arguments, **options)
    return error.value.faults
