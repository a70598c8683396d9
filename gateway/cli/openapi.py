"""`pointsman openapi`: the descriptions of both APIs, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

FOLDER = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Where inference.json and admin.json are written; made if missing.")
]


def openapi(folder: FOLDER = Path()) -> int:
    """Write the OpenAPI 3.1 documents of the inference ports and of the admin API, for generators of clients.

    A running gateway serves the same at /openapi-inference.json and /openapi.json of its admin port.
    """
    from gateway.admin.description import admin_document
    from gateway.api_description.inference import inference_document

    for name, document in (("inference", inference_document()), ("admin", admin_document())):
        path = folder / f"{name}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            typer.echo(f"{path} cannot be written: {error.strerror}", err=True)
            return 1
        typer.echo(path)
    return 0
