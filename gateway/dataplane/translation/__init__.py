"""Requests for engines that speak otherwise than their clients."""
