"""The API over a real Postgres, and callers who are whom the test says."""

from tests.integration.store.conftest import data_folder, open_folder, postgres, store, url

__all__ = ["data_folder", "open_folder", "postgres", "store", "url"]
