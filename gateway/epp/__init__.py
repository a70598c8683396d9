"""The endpoint picker: chooses endpoints for proxies that speak Envoy's external processing."""
