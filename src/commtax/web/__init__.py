"""The page and its JSON API: ``commtax web``. Needs the extra ``[web]`` (FastAPI and uvicorn), except for ``web.assets``."""
