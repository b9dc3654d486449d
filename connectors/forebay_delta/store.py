"""Opens the store of a table by its address.

Folders of this machine are read through the operating system, also in forked processes. Whatever
has another scheme (``s3://``, ``gs://``, ``abfss://``, …) is read through obstore.
"""

from __future__ import annotations

import os
from functools import lru_cache

from forebay_delta.localstore import LocalStore
from forebay_delta.objectstore import ObjectStore
from forebay_delta.paths import local_path
from forebay_delta.storage import Entry, StorageOptions, Store

__all__ = ["Entry", "StorageOptions", "Store", "open_store"]


def open_store(
    uri: str | os.PathLike[str],
    storage_options: StorageOptions = None,
) -> Store:
    """The store of the table at `uri`; nothing is read yet.

    Args:
        uri: a path, ``file://…``, or an address with the scheme of an object store.
        storage_options: what deltalake calls by that name (``AWS_ACCESS_KEY_ID``,
            ``AWS_ENDPOINT_URL``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_NAME``, …),
            or a function that gives them: it is called again when they are refused, so that
            keys which expire can be replaced while a job runs.

    Raises:
        ConfigError: the scheme or an option is not known.
    """

    @lru_cache
    def elsewhere(other: str) -> Store:
        """One for each bucket: a cloned table names thousands of files of another one."""
        return open_store(other, storage_options)

    path = local_path(os.fspath(uri))
    if path is not None:
        return LocalStore(path, elsewhere)
    return ObjectStore(os.fspath(uri), storage_options, elsewhere)
