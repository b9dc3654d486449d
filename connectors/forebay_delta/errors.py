"""What can be wrong with a Delta table, by name.

* SourceError
  - UnsupportedTable     it needs a reader feature that is not known here
  - BrokenTable          its log or a file contradicts itself
  - ChangeRefused        a commit changes rows, and the change policy is to stop there
  - SchemaChanged        a commit changes the schema, and the schema policy is to stop there
  - DataLossError
    . VersionGone          commits between the position and what the log still holds are gone
    . DataFileGone         a data file of a version that is still to be read is gone
    . TableReplaced        the table was dropped, and another one stands in its place
"""

from __future__ import annotations

from forebay.errors import DataLossError, SourceError


class UnsupportedTable(SourceError):
    """The table needs a reader feature that is not known here: reading on would give wrong rows."""


class BrokenTable(SourceError):
    """The log or a file of the table contradicts itself or the protocol."""


class ChangeRefused(SourceError):
    """A commit changes or removes rows, and the change policy does not allow it."""


class SchemaChanged(SourceError):
    """A commit changes the schema in a way that the schema policy does not allow."""


class VersionGone(DataLossError):
    """Commits that were not delivered are gone from the log."""


class DataFileGone(DataLossError):
    """A data file that was not wholly delivered is gone."""


class TableReplaced(DataLossError):
    """The table was dropped and another one was created in its place."""
