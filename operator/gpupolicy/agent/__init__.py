"""The agent: one process per GPU node that owns its GPUs and is the node's DRA driver."""
