"""Model tests neither read nor fill the user's cache of counts; the session shares one of its own."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def counts_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("HARNESS_CACHE")
    os.environ["HARNESS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["HARNESS_CACHE"]
    else:
        os.environ["HARNESS_CACHE"] = before
