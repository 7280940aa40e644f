"""Ranges of objects of S3, with a check of which bytes an answer has; ``s3fs`` does not check."""

from __future__ import annotations

from typing import Any

from seqdata.storage.remote.http_client import WrongBodyError, check_first_byte


def read_s3(system: Any, path: str, start: int, stop: int, seconds: float) -> bytes:
    """Return bytes ``start:stop`` of an object.

    Args:
        system: The file system of ``s3fs``.
        path: Bucket and key, maybe with a version.
        start: First byte.
        stop: One past the last byte.
        seconds: Timeout.

    Raises:
        WrongBodyError: If the answer has other bytes.
    """
    from fsspec.asyn import sync

    body: bytes = sync(system.loop, _read, system, path, start, stop, timeout=seconds)
    return body


async def _read(system: Any, path: str, start: int, stop: int) -> bytes:
    bucket, key, version = system.split_path(path)
    answer = await system._call_s3(
        "get_object",
        Bucket=bucket,
        Key=key,
        Range=f"bytes={start}-{stop - 1}",
        **({} if version is None else {"VersionId": version}),
    )
    try:
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        check_first_byte(status, answer.get("ContentRange", ""), start)
        if answer["ContentLength"] > stop - start:  # it is not downloaded
            raise WrongBodyError(f"{stop - start} bytes were requested, but more were received")
        body: bytes = await answer["Body"].read()
    finally:
        answer["Body"].close()
    return body
