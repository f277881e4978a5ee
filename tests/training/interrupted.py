"""A run that is interrupted after some steps, as by Ctrl-C."""

from dpdt.training import run as running
from dpdt.training.run import run


class Cut(running.Interrupt):
    """Asks to stop after some steps."""

    steps = 3

    @property
    def asked(self):
        self.count = getattr(self, "count", 0) + 1
        return self.count > self.steps

    @asked.setter
    def asked(self, value):
        pass


def cut(monkeypatch, chosen, path, steps=3, **given):
    """The outcome of a run that is asked to stop while it takes the step after so many."""
    with monkeypatch.context() as patch:
        patch.setattr(running, "Interrupt", type("Here", (Cut,), {"steps": steps}))
        return run(chosen, path, show_progress=False, **given)
