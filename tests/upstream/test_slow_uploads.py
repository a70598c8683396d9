"""Which admitted requests count, and which wait for their clients."""

from dataclasses import dataclass

from gateway.upstream.slow_uploads import SlowUploads


@dataclass(eq=False)
class _Request:
    is_uploading: bool


def test_an_upload_counts_again_once_it_is_whole() -> None:
    """A request counts for a moment; then not while its client sends it, and from its last byte on again. Each leaves
    as it is."""
    uploads = SlowUploads()
    slow, quick, gone = _Request(True), _Request(False), _Request(True)
    for number, each in enumerate((slow, quick, gone)):
        uploads.entered(each, float(number))
    assert uploads.count(0.05) == 0
    assert uploads.count(1.05) == -1
    assert uploads.count(3.0) == -1 and uploads.slow == {slow, gone}
    assert uploads.left(quick) and not uploads.left(gone)
    slow.is_uploading = False
    assert uploads.count(4.0) == 1
    assert uploads.count(5.0) == 0
    assert uploads.left(slow) and not uploads.slow
