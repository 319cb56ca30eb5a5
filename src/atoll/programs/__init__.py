"""Any program of this machine in a jail: rules for its files, its streams, its terminal."""
