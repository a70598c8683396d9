"""Who may use the admin API, as the settings say."""

from __future__ import annotations

from gateway.admin.api_keys import KeysError
from gateway.admin.auth_middleware import Access, is_loopback
from gateway.admin.keyring import Keyring
from gateway.config.settings import Settings


class AccessError(Exception):
    """The admin API cannot be offered so; the message says what to do."""


def admin_access(settings: Settings) -> Access:
    """Raises: AccessError."""
    if settings.admin_keys is not None:
        try:
            return Access(Keyring(settings.admin_keys), has_open_metrics=settings.open_metrics)
        except KeysError as error:
            raise AccessError(str(error)) from error
    if not is_loopback(settings.admin_host):
        raise AccessError(
            f"--admin-host {settings.admin_host} would let others change this gateway: make a key "
            "(pointsman keys add NAME --role admin --file keys.yaml) and serve with --admin-keys keys.yaml, "
            "or stay with --admin-host 127.0.0.1"
        )
    return Access()
