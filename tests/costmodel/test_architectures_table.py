"""The project's table of models against the published one that it was copied from."""

import csv

import pytest

from costmodel.architectures.command import describe
from costmodel.architectures.table import rows
from tests.support.published_data import folder

OFF_BY = {"vit-b-16": 768}
"""The published table has one row of 768 more; transformers and torchvision count 86,567,656."""


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_counts_are_those_of_the_published_table(row: object) -> None:
    with folder("models.csv").open(encoding="utf-8") as file:
        published = {line["id"]: line for line in csv.DictReader(file)}[row.id]
    found = describe(row.id)
    if published["params_computed"]:
        assert found.parameters == int(published["params_computed"]) - OFF_BY.get(row.id, 0)
    if published["params_active_computed"]:
        assert found.active_parameters == int(published["params_active_computed"])
