"""What a call that came to nothing says."""

from __future__ import annotations

from botocore.exceptions import EndpointConnectionError
from botocore.parsers import ResponseParserError

from skyward_core.providers.aws.ec2_errors import translate_error


def test_the_page_of_a_server_that_is_none_of_aws_is_not_quoted() -> None:
    page = b"<!doctype html>\n<title>Sign in</title>\n"
    error = ResponseParserError(f"Unable to parse response (syntax error), invalid XML received:\n{page!r}")
    said = str(translate_error(error, "ec2", "us-east-1", "describe_instances"))
    assert "look for a proxy, or a network's sign-in page" in said and "<title>" not in said


def test_a_region_that_there_is_not_is_named() -> None:
    error = EndpointConnectionError(endpoint_url="https://ec2.us-eats-1.amazonaws.com/")
    assert "that there is a region us-eats-1" in str(translate_error(error, "ec2", "us-eats-1", "describe_instances"))
