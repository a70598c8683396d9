"""`pointsman service`: the gateway, a fleet or an engine as a service of the system, by launchd or systemd."""
