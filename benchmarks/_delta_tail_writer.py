"""Appends to a Delta table, one commit for each line it reads; a process of its own.

``ROOT``: for each line it writes one row whose number the line holds, and prints it again.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

if __name__ == "__main__":
    table = DeltaTable(sys.argv[1])
    for line in sys.stdin:
        write_deltalake(table, pa.table({"n": [int(line)]}), mode="append")
        print(line, end="", flush=True)
