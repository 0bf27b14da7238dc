"""The agent of one node: the one process that shapes its cards, publishes them and prepares claims on them."""

from gpupolicy.agent import footprint

# Here, because it has to come before the first import of aiohttp, by whatever module of the agent.
footprint.prepare()
