# Sourced by scripts/test: a Chromium for the tests of the page (tests/browser), where there is none and root can have
# apt-get install one. Where none can be had these tests say so and are skipped.
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

if ! have_chromium && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing chromium for the tests of the page (once)" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
        >/dev/null 2>&1 || echo "No chromium could be installed: the tests of the page are skipped" >&2
fi
