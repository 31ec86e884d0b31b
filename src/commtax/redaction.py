"""Secrets in text of strangers: tokens, keys and passwords of pasted commands, scripts, YAML and logs, which no answer repeats.

What tells a secret is its own form (``hf_…``) or the name before it (``--api-key``, ``HF_TOKEN=``). References (``$HF_TOKEN``),
numbers and what is shown in place of a value (``<key>``) are none. ``redact`` stands where launches are read and where text leaves.
"""

import re
from functools import cache

REDACTED = "REDACTED"
_FORMS = (  # as their issuers write them
    r"hf_[A-Za-z0-9]{16,}",  # Hugging Face
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and their like
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",  # AWS
    r"AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}",  # Google Cloud
    r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}",  # GitHub, GitLab
    r"nvapi-[A-Za-z0-9_-]{16,}",  # NGC
    r"xox[abeprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{16,}",  # Slack
    r"(?:gsk|npm|r8|dckr_pat|do[opr]_v1|[sr]k_(?:live|test)|wandb_v1|lsv2_[ps]t)_[A-Za-z0-9_]{16,}",  # Groq, npm, Replicate …
    r"pypi-A[A-Za-z0-9_-]{24,}|(?:dapi|pplx-)[A-Za-z0-9]{24,}|tvly-[A-Za-z0-9-]{24,}",  # PyPI, Databricks, Perplexity, Tavily
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON Web Tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*+(?:-----END [A-Z ]*PRIVATE KEY-----)?",
)
_END = r"(?:token|key|secret|password|passwd|credentials?)"
_OF = r"(?:api|auth|access|secret|private|hf|hub|huggingface|github|gitlab|wandb|ngc|openai|anthropic|aws|azure|account|bearer)"
_NAMES = (  # whose values are secrets
    r"(?-i:\b(?:[A-Z0-9]+_)*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)\b|\b(?:[A-Z0-9]+_)+KEY\b|\b[A-Z]*APIKEY\b)",
    rf"\b{_OF}(?:[_-]?(?:api|access|secret|auth|hub))*[_-]?{_END}\b|\b(?:password|passwd|passphrase|client[_-]secret)\b",
)
_TO = r"""["'\\]*\s*[:=]\s*(?:\[\s*)?["'\\]*"""  # NAME=…, "name": "…", name: ['…
_VALUE = (  # up to the quotation mark that closes it, else to a space or a bracket
    r"""(?![$<{\[*]|REDACTED\b|(?:none|null|true|false)\b|[\d.,]+(?:e[+-]?\d+)?(?=["'\\\s,;)\]}]|$))"""
    r"""(?:(?<=")[^"\\\n]{1,400}(?=["\\])|(?<=')[^'\\\n]{1,400}(?=['\\])|[^\s"'\\,;&|()\[\]{}]+)"""
)
_FLAG = r"--?(?:[\w-]*[_-])?(?:token|key|secret|password|passwd|credentials?)(?:=|\s+(?:-\s+)?|[\"',\s\\-]+\s)[\"'\\]*(?!-)"
_MAY = re.compile(
    r"hf_|sk-|AKIA|ASIA|AIza|ya29|gh[pousr]_|github_|glpat|nvapi|xox|xapp|eyJ|BEGIN |://[^\s/]*@|login |TOKEN(?!S)|APIKEY"
    r"|gsk_|npm_|r8_|_pat_|_v1_|k_live_|k_test_|lsv2_|pypi-|dapi|pplx-|tvly-"
    r"|(?<!inter)(?<!per)(?<!output)(?i:[_-](?:token|key)\b|secret|passw|passphrase|credential|bearer|authorization)"
)
"""What stands in every text with a secret."""


@cache
def _pattern() -> re.Pattern[str]:
    names = "|".join(_NAMES)
    before = (
        r"(?P<url>[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"']{0,100}:)",
        r"(?P<bearer>\b(?:authorization[\"'\\]*\s*[:=]\s*[\"'\\]*(?:(?:bearer|basic|token)\s+)?|bearer\s+(?=[^\s\"']{8})))",
        r"(?P<login>\b(?:wandb|huggingface-cli|hf auth|hf|ngc)\s+login\s+(?:--?[\w-]+\s+){0,4})",
        rf"(?P<listed>\bname[\"']?\s*:\s*[\"']?(?:{names})[\"']?\s*,?\s*[\"']?value[\"']?\s*:\s*[\"']?)",
        rf"(?P<named>(?:{names}){_TO}(?:bearer\s+)?)",
        rf"(?P<flag>(?<![\w-]){_FLAG})",
    )
    forms = "|".join(_FORMS)
    values = (r"[^\s/@\"']{1,200}(?=@)", *[_VALUE] * (len(before) - 1))
    named = "|".join(f"{name}{value}" for name, value in zip(before, values, strict=True))
    return re.compile(rf"(?<![A-Za-z0-9])(?-i:{forms})|{named}", re.I)


def redact(text: str) -> str:
    """Return a text without its secrets.

    >>> redact("HF_TOKEN=hf_abcdefghijklmnopqrst vllm serve x --api-key hunter2 --max-num-batched-tokens 8192")
    'HF_TOKEN=REDACTED vllm serve x --api-key REDACTED --max-num-batched-tokens 8192'
    >>> redact("curl -H 'Authorization: Bearer abc123' https://me:pw@host; TPOT of each output_token: 20ms; --api-key $KEY")
    "curl -H 'Authorization: Bearer REDACTED' https://me:REDACTED@host; TPOT of each output_token: 20ms; --api-key $KEY"
    """
    if not _MAY.search(text):
        return text
    return _pattern().sub(lambda secret: f"{secret[secret.lastgroup] if secret.lastgroup else ''}{REDACTED}", text)
