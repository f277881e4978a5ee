"""`dpdt`, where rank 1 is killed once. torchrun starts it; restarted ranks go on unharmed.

torchrun … killed.py STEP train …
"""

import os
import signal
import sys

from dpdt.cli.main import main
from dpdt.training import recorder

STEP = int(sys.argv.pop(1))
on_step = recorder.Recorder.on_step


def killing(self, result, batch):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and os.environ["RANK"] == "1" and batch.step == STEP:
        os.kill(os.getpid(), signal.SIGKILL)
    on_step(self, result, batch)


recorder.Recorder.on_step = killing
main()
