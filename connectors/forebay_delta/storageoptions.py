"""Storage options by deltalake's names, sorted into what obstore takes them as.

obstore takes settings of the store, of its HTTP client and of its retries in three arguments, and
panics on some mixtures; deltalake takes all of them in one mapping, with options of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from obstore.exceptions import UnknownConfigurationKeyError
from obstore.store import ObjectStore, from_url

from forebay.errors import ConfigError

CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
_SWITCHES = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "http1_only",
        "http2_keep_alive_while_idle",
        "http2_only",
        "randomize_addresses",
    }
)
_RETRY_OPTIONS = frozenset({"max_retries", "retry_timeout"})

# For writers only: they decide how a commit is put, and a reader has no use for them.
_WRITER_OPTIONS = re.compile(
    r"(aws_|s3_|mount_)*(allow_unsafe_rename|s3_locking_provider|conditional_put|"
    r"copy_if_not_exists|endpoint_url_dynamodb)|(delta_)?dynamo.*"
)

# Only to tell what a mistyped name may have meant; obstore knows what is right.
_COMMON_OPTIONS = (
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region",
    "aws_default_region",
    "aws_endpoint_url",
    "aws_allow_http",
    "aws_virtual_hosted_style_request",
    "aws_skip_signature",
    "aws_role_arn",
    "aws_web_identity_token_file",
    "aws_request_payer",
    "google_service_account",
    "google_service_account_key",
    "google_application_credentials",
    "google_skip_signature",
    "azure_storage_account_name",
    "azure_storage_account_key",
    "azure_storage_sas_token",
    "azure_storage_client_id",
    "azure_storage_client_secret",
    "azure_storage_tenant_id",
    "azure_storage_use_emulator",
    *sorted(CLIENT_OPTIONS | _RETRY_OPTIONS),
)

# A reader must hear of a store that is gone while somebody still watches: three minutes, the
# default, are longer than most liveness probes wait.
_RETRY_SECONDS = 30.0

_SECRET = re.compile(r"key|secret|token|sas|password|credential|certificate", re.IGNORECASE)
_QUERY = re.compile(r"(?<=\w)\?[^\s\"')]*")


@dataclass(frozen=True)
class Options:
    """Storage options, sorted; `shown` takes their secrets out of a text."""

    store: dict[str, Any] = field(default_factory=dict, repr=False)
    client: dict[str, Any] = field(default_factory=dict, repr=False)
    retry: dict[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def shown(self, text: str) -> str:
        """`text` without secrets and without queries of addresses, which may be signatures."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return _QUERY.sub("", text)


def sort_options(given: Mapping[str, str], uri: str) -> Options:
    """Sorts options by what they are for; raises ConfigError for a value that does not fit."""
    options = Options(
        retry={"retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
        secrets=tuple(str(v) for k, v in given.items() if _SECRET.search(k) and len(str(v)) > 4),
    )
    for key, value in given.items():
        name = re.sub(r"^(aws_|google_|azure_)", "", key.lower())
        if name in CLIENT_OPTIONS:
            options.client[name] = _switch(uri, key, value) if name in _SWITCHES else value
        elif name in _RETRY_OPTIONS:
            options.retry[name] = _retry_value(uri, key, name, value)
        elif not _WRITER_OPTIONS.fullmatch(key.lower()):
            options.store[key.lower()] = value
    return options


def connect(uri: str, options: Options, shown: str) -> ObjectStore:
    """The store at `uri`; nothing is asked of it yet.

    Raises:
        ConfigError: the scheme or an option is not known, or a needed one is missing.
    """
    try:
        return _typed(from_url)(
            uri,
            config=options.store,
            client_options=options.client,
            retry_config=options.retry,
        )
    except UnknownConfigurationKeyError as error:
        raise ConfigError(f"{shown}: {_unknown_option(str(error), options)}") from None
    except Exception as error:  # obstore raises its own errors, ValueError and TypeError
        why = options.shown(str(error).partition("\n")[0]).rstrip(".")
        raise ConfigError(
            f"{shown}: no store can be made of this address: {why}. Known are s3://, s3a://, "
            "gs://, az://, abfs://, abfss://, adl://, https:// and paths of this machine; "
            "an account or a region may be missing in storage_options."
        ) from None


def _typed(function: Any) -> Callable[..., ObjectStore]:
    """obstore types one overload for each cloud; which one it is, only the scheme knows."""
    return function  # type: ignore[no-any-return]


def _unknown_option(error: str, options: Options) -> str:
    found = re.search(r"key: '([^']*)'", error)
    name = found[1] if found else "?"
    if name in _COMMON_OPTIONS:
        return f"storage option {name!r} is for another kind of store. Leave it out."
    known = [f"'{near}'" for near in get_close_matches(name, _COMMON_OPTIONS, n=3, cutoff=0.5)]
    hint = f"Did you mean {' or '.join(known)}? " if known else ""
    return (
        f"storage option {name!r} is not known. {hint}Keys that something else has to fetch "
        "(a profile, an assumed role) can be given by a function as storage_options."
    )


def _switch(uri: str, key: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise ConfigError(f"{uri}: storage option {key!r} is {value!r}: give 'true' or 'false'.")


def _retry_value(uri: str, key: str, name: str, value: object) -> int | timedelta:
    text = str(value).strip()
    if name == "max_retries" and text.isdigit():
        return int(text)
    seconds = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:s|sec|secs|seconds?)?", text)
    if name == "retry_timeout" and seconds:
        return timedelta(seconds=float(seconds[1]))
    raise ConfigError(
        f"{uri}: storage option {key!r} is {value!r}: give a number, or seconds as in '30s'."
    )
