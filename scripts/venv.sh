# Sourced by the scripts beside it: makes .venv and installs Pointsman with an extra into it, once per pyproject.toml.
#
#   . scripts/venv.sh EXTRA

find_python() {
    # One that the packages have builds for; POINTSMAN_PYTHON chooses another.
    for candidate in ${POINTSMAN_PYTHON:-} python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    echo "Pointsman needs Python 3.11 or newer; none of python3.11, python3.12, python3.13, python3 is." >&2
    echo "Install one (Debian: apt install python3 python3-venv; macOS: brew install python@3.12)," >&2
    echo "or name it: POINTSMAN_PYTHON=/path/to/python $0" >&2
    exit 1
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
        if [ "$extra" = dev ] && ! .venv/bin/python -c 'import torch' 2>/dev/null; then
            # This release first, so that a build for the CPU is taken where there is one.
            .venv/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 2>&1 |
                { grep --line-buffered -v '^WARNING' >&2 || true; }
        fi
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extra]" 2>&1 |
            { grep --line-buffered -v '^WARNING' >&2 || true; }
        [ "${PIPESTATUS[0]}" = 0 ] || { echo "The installation failed; see above." >&2; exit 1; }
        echo "$wanted" >"$stamp"
    fi
}

install_pointsman "$1"
