"""Servers with the protocol of S3: a bucket for the trials, and what such servers refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import certifi

from tests.storage.real.server import Refusal, Server

BUCKET = "trials"


def client(endpoint: str, key: str, secret: str, bundle: str = "") -> Any:
    """Return a client of botocore, which adds no checksums: old servers refuse those."""
    import botocore.session
    from botocore.config import Config

    config = Config(request_checksum_calculation="when_required", s3={"addressing_style": "path"})
    session = botocore.session.Session()
    return session.create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        verify=bundle or None,
        config=config,
    )


def s3_server(
    version: str,
    endpoint: str,
    keys: tuple[str, str],
    *,
    bundle: str = "",
    lacks: Mapping[str, str] | None = None,
) -> Server:
    """Return the server at `endpoint`, with a new bucket; `keys`: id and secret of its user."""
    from botocore.exceptions import ClientError

    known = client(endpoint, *keys, bundle)
    try:
        known.create_bucket(Bucket=BUCKET)
    except ClientError as error:  # two servers of ours may be one, with TLS and without
        if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise

    def get(name: str) -> bytes | None:
        try:
            data: bytes = known.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        except known.exceptions.NoSuchKey:
            return None
        return data

    env = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": keys[0],
        "AWS_SECRET_ACCESS_KEY": keys[1],
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    if bundle:
        env["AWS_CA_BUNDLE"] = bundle
    signed = known.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "none.tar"}, 3600)
    expired = known.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "none.tar"}, 1)
    env |= {"REQUESTS_CA_BUNDLE": bundle} if bundle else {}
    refusals = s3_refusals(endpoint, signed, expired)
    return Server(
        version, f"s3://{BUCKET}", env, get, lacks=lacks or {}, refusals=refusals, secrets=[keys[1], "X-Amz-"]
    )


def s3_refusals(endpoint: str, signed: str, expired: str) -> list[Refusal]:
    """Return what a server refuses; `signed` and `expired` are URLs with a signature."""
    dead = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "TARTOOLS_TRIES": "1"}
    wrong_tls = {"AWS_ENDPOINT_URL": endpoint.replace("http:", "https:"), "TARTOOLS_TRIES": "1"}
    if endpoint.startswith("https"):
        wrong_tls = {"AWS_CA_BUNDLE": certifi.where(), "TARTOOLS_TRIES": "1"}
    credentials = r"the server does not accept the credentials \(\w+\)"
    missing, bucket = r"no such object", r"no such bucket: no-such-bucket"
    none = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "")
    return [
        Refusal("an object that does not exist", ["{base}/none.tar"], missing),
        Refusal("an object below one", ["{base}/none/none.tar"], missing),
        Refusal("a pattern without a match", ["{base}/none-*.tar"], r"no object matches|no such object"),
        Refusal("one of a range", ["{base}/none-{{0..2}}.tar"], missing),
        Refusal("a bucket that does not exist", ["s3://no-such-bucket/a.tar"], bucket),
        Refusal("a pattern in it", ["s3://no-such-bucket/*.tar"], bucket),
        Refusal("an output in it", ["-o", "s3://no-such-bucket/a.tar", "{small}"], bucket),
        Refusal("a wrong secret", ["{base}/none.tar"], credentials, {"AWS_SECRET_ACCESS_KEY": "wrong"}),
        Refusal(
            "a wrong secret, writing", ["-o", "{base}/x.tar", "{small}"], credentials, {"AWS_SECRET_ACCESS_KEY": "w"}
        ),
        Refusal(
            "an unknown key",
            ["{base}/none.tar"],
            rf"{credentials}|no permission to read \(\w+\)",
            {"AWS_ACCESS_KEY_ID": "unknown"},
        ),
        Refusal("no credentials", ["{base}/none.tar"], "no AWS credentials: .*", none),
        Refusal("nobody listens", ["{base}/none.tar"], r"cannot connect to 127.0.0.1:1: .* \(1 try\)", dead),
        Refusal(
            "nobody listens, writing", ["-o", "{base}/x.tar", "{small}"], r"cannot connect to 127.0.0.1:1: .*", dead
        ),
        Refusal("a wrong certificate, or none", ["{base}/none.tar"], r"TLS error .*|.*certificate.*", wrong_tls),
        Refusal("no name of an object", ["s3://trials"], "write s3://BUCKET/KEY"),
        Refusal("a signed URL of nothing", [signed], "404 Not Found"),
        Refusal("an expired URL", [expired], r"no permission to read \(AccessDenied(: .*[Ee]xpired.*)?\)"),
    ]
