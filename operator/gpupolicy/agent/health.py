"""The health of the node's devices, for the kubelet, which shows it in the status of their pods."""

from collections.abc import Sequence
from typing import Final

from gpupolicy.adapters.kubeletplugin import claims
from gpupolicy.agent.state import NodeState
from gpupolicy.core.inventory import Health

_STATES: Final = {
    Health.HEALTHY: claims.HealthState.HEALTHY,
    Health.UNHEALTHY: claims.HealthState.UNHEALTHY,
    Health.UNKNOWN: claims.HealthState.UNKNOWN,
}


class StateHealth:
    """Implements `kubeletplugin.claims.HealthSource` from the node's memory."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    async def health(self) -> Sequence[claims.DeviceHealth]:
        """Return the health of every device that stands, published or not."""
        return [
            claims.DeviceHealth(pool=self._state.pool, device=name, state=_STATES[health], message=message)
            for name, (health, message) in sorted(self._state.health.items())
        ]
