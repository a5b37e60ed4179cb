"""One page over a running or recorded pipeline, metrics for operators, a report to keep.

`Watch` turns the micro-batches of a pipeline into moments, one a second, and hands them to a page,
a recording, a log; `replay` takes them from a recording. The page and the report are functions of
moments. Nothing here needs Spark but to be told of its micro-batches.
"""

from semistream.dashboard.history import History
from semistream.dashboard.live import Watch
from semistream.dashboard.moment import Moment
from semistream.dashboard.recording import About, RecordedRun, Recording
from semistream.dashboard.replay import replay
from semistream.dashboard.report import report, report_of
from semistream.dashboard.server import Access, DashboardServer

__all__ = [
    "About",
    "Access",
    "DashboardServer",
    "History",
    "Moment",
    "RecordedRun",
    "Recording",
    "Watch",
    "replay",
    "report",
    "report_of",
]
