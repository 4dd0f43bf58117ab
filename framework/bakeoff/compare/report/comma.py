"""One row a trial, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io

from bakeoff.compare.results import Results


def csv_text(results: Results) -> str:
    """All trials with all measures; a measure that a trial lacks is an empty field."""
    rows = results.rows()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
