"""Sessions of many clients, for daemon, service and fleet: table, dispatch, queue, callbacks."""
