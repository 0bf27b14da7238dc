"""What the reconcile loop tells of its work, for metrics. The loop does not know who listens; by default nobody does."""

from gpupolicy.core.refusals import Refusal


class Journal:
    """Takes what is told and keeps nothing."""

    def looked(self, seconds: float) -> None:
        """Take that a pass over all cards took this long."""

    def applied(self, seconds: float, failure: Refusal | None) -> None:
        """Take that an attempt to bring a card to its layout ended, well or with this failure."""

    def drifted(self) -> None:
        """Take that a card has not the layout any more that it had."""
