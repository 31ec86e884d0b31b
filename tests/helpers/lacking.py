"""What a text does not say."""


def lacking(text, *parts):
    return [part for part in parts if part not in text]
