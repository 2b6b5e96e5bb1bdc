"""The connection to an object store, and its refusals in plain words.

The library underneath (obstore) is optional; nothing here is imported before a URL asks for it.
Where the store is and who asks comes from the environment, by the names that each provider gives
them: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their like.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from streamlearn.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["SCHEMES", "connect", "explained"]

SCHEMES = ("s3", "gs", "az", "memory")
"""What may stand before "://"; memory:// is gone with the process and meant for trials."""

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 180.0  # of one attempt, a shard of 50 MB over a slow line
RETRIES = 6
RETRY_SECONDS = 120.0  # from the first attempt to the beginning of the last

_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
# A word of the library's or the server's text, and what it means: reason, remedy, errno.
_REASONS: tuple[tuple[str, str, str, int], ...] = (
    (
        "NoSuchBucket",
        "there is no bucket {bucket!r}",
        "make it, or name another",
        errno.ENODEV,
    ),
    (
        r"/latest/|169\.254\.|metadata\.google|MissingAccount|Account must be specified"
        "|Missing AccessKeyId|Missing SecretAccessKey",
        "there are no credentials for it",
        "set {keys}",
        errno.EACCES,
    ),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|TokenRefreshRequired"
        "|AuthenticationFailed",
        "its credentials are refused",
        "set {keys} anew",
        errno.EACCES,
    ),
    (
        "RequestTimeTooSkewed",
        "this machine's clock is wrong",
        "set the clock and go on from the last commit",
        errno.EACCES,
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|redirect without LOCATION"
        "|IllegalLocationConstraint",
        "the bucket lies in another region",
        "set AWS_REGION to that of the bucket",
        errno.ENODEV,
    ),
    (
        r"\b501 |NotImplemented|NotSupported",
        "the store knows no conditional writes",
        "use one that does, for without them two writers could spoil a run",
        errno.ENOTSUP,
    ),
    (
        "QuotaExceeded|507 |EntityTooLarge|413 ",
        "the store takes no more",
        "make room and go on from the last commit, which is whole",
        errno.ENOSPC,
    ),
    (
        r"[Tt]imed ?[Oo]ut|kind: Timeout|\b408 |RequestTimeout",
        "{endpoint} did not answer in time",
        "check the network and go on from the last commit",
        errno.ETIMEDOUT,
    ),
    (
        "error sending request|kind: Connect|dns error|kind: Request",
        "{endpoint} cannot be reached",
        "check the network and AWS_ENDPOINT_URL, then go on from the last commit",
        errno.EHOSTUNREACH,
    ),
    (
        "KeyTooLong",
        "its name is too long",
        "choose a shorter run.dir or run.name",
        errno.ENAMETOOLONG,
    ),
    (
        r"\b503 |\b500 |\b502 |\b504 |SlowDown|InternalError",
        "{endpoint} is out of order",
        "wait a while and go on from the last commit",
        errno.EAGAIN,
    ),
)


def connect(scheme: str, bucket: str) -> ObjectStore:
    """The client of a bucket; the same one as long as the environment is the same.

    Raises:
        ConfigError: the optional library is missing, or the environment says nonsense.
    """
    told = frozenset(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    return _connect(scheme, bucket, "" if scheme == "memory" else hash(told))


@functools.cache
def _connect(scheme: str, bucket: str, told: int) -> ObjectStore:
    try:
        from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store
    except ImportError as error:
        raise ConfigError(
            f"'{scheme}://{bucket}' needs the package obstore, which is not installed; "
            "install it by `pip install 'streamlearn[s3]'`"
        ) from error
    if scheme == "memory":
        return MemoryStore()
    store: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]
    seconds = {"timeout": REQUEST_SECONDS, "connect_timeout": CONNECT_SECONDS}
    options = {key: timedelta(seconds=value) for key, value in seconds.items()}
    retries = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    try:
        client: ObjectStore = store(
            bucket,
            client_options={**options, "allow_http": _plain_http()},
            retry_config=retries,
        )
    except Exception as error:  # the library's errors are Exceptions and many
        raise ConfigError(_sentence(error, "open", f"{scheme}://{bucket}")[0]) from error
    return client


def explained(error: Exception, action: str, url: str) -> StorageError:
    """The error that says in a sentence what the store refused, and what to do.

    Args:
        error: of the library.
        action: what was being done ("read", "write").
        url: to what.

    Returns:
        The error, with an `errno` that comes nearest.
    """
    text, number = _sentence(error, action, url)
    failure = StorageError(text)
    failure.errno = number
    return failure


def _plain_http() -> bool:
    """Whether the endpoint was said to be without encryption, as servers of one's own often are."""
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on"):
        return True
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return any(os.environ.get(name, "").lower().startswith("http://") for name in names)


def _sentence(error: Exception, action: str, url: str) -> tuple[str, int]:
    text = str(error)
    scheme, _, rest = url.partition("://")
    bucket = rest.partition("/")[0]
    found = re.search(r"(https?://[^/\s]+)", text)
    endpoint = f"the server {found.group(1)!r}" if found else "its server"
    start = f"cannot {action} {url!r}: "
    for pattern, reason, remedy, number in _REASONS:
        if re.search(pattern, text):
            words = {"bucket": bucket, "endpoint": endpoint, "keys": _KEYS.get(scheme, "them")}
            return start + f"{reason}; {remedy}".format_map(words), number
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        remedy = "give these credentials the right to list, read, write and delete there"
        return f"{start}access is denied; {remedy}", errno.EACCES
    first = text.partition("\n")[0].strip() or type(error).__name__
    return f"{start}{first}; look at the store and go on from the last commit", errno.EIO
