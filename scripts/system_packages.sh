# Sourced by scripts/test: a Chromium for the tests of the page (tests/browser) and a Prometheus for those of dashboards and
# alerts (tests/docker), where there is none and root can have apt-get install one. Where none can be had these tests say so
# and are skipped.
have_chromium() {
    local name
    for name in "${POINTSMAN_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
        if [ -n "$name" ] && command -v "$name" >/dev/null 2>&1; then
            return 0
        fi
    done
    [ -x "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" ] ||
        [ -x "/Applications/Chromium.app/Contents/MacOS/Chromium" ]
}

missing=""
have_chromium || missing="chromium"
command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing $missing for the tests (once)" >&2
    apt-get update -qq >/dev/null 2>&1 || true
    for name in $missing; do
        # RUNLEVEL=1: a service of the package does not start
        RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$name" >/dev/null 2>&1 ||
            echo "$name could not be installed: tests that need it are skipped" >&2
    done
fi
