# Sourced by the scripts beside it: makes .venv and installs Pointsman with an extra into it, once per pyproject.toml.
#
#   . scripts/venv.sh EXTRA

# Containers often set this; every process would compile all its modules again, at twice the CPU of its start.
unset PYTHONDONTWRITEBYTECODE

# What a Python must be for the packages to have builds for it.
is_supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}

# On a Mac without the Command Line Tools /usr/bin/python3 is a stub that opens a dialog.
is_stub() {
    [ "$(uname -s)" = Darwin ] && [ "$(command -v "$1")" = /usr/bin/python3 ] && ! xcode-select -p >/dev/null 2>&1
}

find_python() {
    local candidate candidates="python3.11 python3.12 python3.13 python3.14"
    if [ -n "${POINTSMAN_PYTHON:-}" ]; then
        if "$POINTSMAN_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$POINTSMAN_PYTHON"
            return
        fi
        echo "POINTSMAN_PYTHON=$POINTSMAN_PYTHON is not a Python of 3.11 or newer." >&2
        exit 1
    fi
    if [ "$(uname -s)" = Darwin ]; then
        candidates="python3.13 python3.12 python3.14 python3.11" # 3.13 is the first that has os.waitid there
    fi
    for candidate in $candidates python3; do
        if command -v "$candidate" >/dev/null 2>&1 && ! is_stub "$candidate" && is_supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "Pointsman needs Python 3.11, 3.12, 3.13 or 3.14; none is found here." >&2
    echo "Install one (Debian: apt install python3 python3-venv; macOS: brew install python@3.13)," >&2
    echo "or name it: POINTSMAN_PYTHON=/path/to/python $0" >&2
    exit 1
}

pip_install() { # Python compiles a module when it is first imported: most never are.
    .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check "$@" 2>&1 |
        { grep --line-buffered -v '^WARNING' >&2 || true; }
    return "${PIPESTATUS[0]}"
}

install_pointsman() {
    local extra=$1 stamp=.venv/.installed-$1 wanted
    wanted=$(cksum pyproject.toml)
    if [ ! -x .venv/bin/python ]; then
        local python
        python=$(find_python)
        echo "Making .venv with $("$python" --version)" >&2
        if ! "$python" -m venv .venv; then
            rm -rf .venv
            echo "Cannot make a virtual environment (Debian: apt install python3-venv)." >&2
            exit 1
        fi
    fi
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "Installing Pointsman with its '$extra' extra into .venv (a few minutes, once)" >&2
        # The pip of older Pythons takes twice as long; it does, too, where there is no newer one.
        pip_install "pip>=25" 2>/dev/null || true
        # torch's release first, so that a build for the CPU is taken where there is one.
        if ! { [ "$extra" != dev ] || .venv/bin/python -c 'import torch' 2>/dev/null || pip_install torch==2.13.0; } ||
            ! pip_install --editable ".[$extra]"; then
            echo "The installation failed; see above." >&2
            exit 1
        fi
        echo "$wanted" >"$stamp"
    fi
}

install_pointsman "$1"
