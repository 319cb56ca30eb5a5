"""One long-lived process per user that holds sandboxes for many clients, over a Unix socket."""
