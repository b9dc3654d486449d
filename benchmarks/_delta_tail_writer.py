"""Appends to a Delta table, one commit for each line it reads; a process of its own.

``ROOT``: for each line it writes one row whose number the line holds, and prints when the commit
was there: seconds of the clock that all processes share.
"""

from __future__ import annotations

import sys
import time

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

if __name__ == "__main__":
    table = DeltaTable(sys.argv[1])
    for line in sys.stdin:
        write_deltalake(table, pa.table({"n": [int(line)]}), mode="append")
        print(time.monotonic(), flush=True)
