"""A kubelet plugin for dynamic resource allocation (DRA), as a library: it knows nothing of GPUs or policies.

Two halves that a driver runs side by side:

- `server.KubeletPlugin` answers the kubelet over two Unix sockets: it registers the driver, hands prepare and
  unprepare calls to the driver's handler and streams device health.
- `publisher.SlicePublisher` keeps the driver's ResourceSlices of one node as the driver wants them; what is to be
  written is computed in `slices`, without I/O.

`claims` holds the types that both the driver and this package speak. Nothing here imports anything of the program
around it.
"""
