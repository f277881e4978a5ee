"""What a run did, as far as privacy is concerned.

A ledger is the one thing that passes from training to accounting. It holds everything that an
accountant may need, and nothing private. In memory it is run-length coded: `Stretch`es, each a
`Setting` and how many consecutive steps used it. On disk it is JSON lines, appended as the run
goes. A line is written *ahead* of its step, so that a run that was cut short still knows what it
spent.
"""

from dpdt.ledger.ledger import Ledger
from dpdt.ledger.records import Block, Header, Planned, Setting, Stretch, Tuned, counted
from dpdt.ledger.writer import LedgerWriter, nonce, text_of

__all__ = [
    "Block",
    "Header",
    "Ledger",
    "LedgerWriter",
    "Planned",
    "Setting",
    "Stretch",
    "Tuned",
    "counted",
    "nonce",
    "text_of",
]
