"""Files that hold a text, and what a text does not say."""


def put(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def lacking(text, *parts):
    return [part for part in parts if part not in text]
