"""Secrets on their way to a model: named and gone; ordinary text stays; time stays linear."""

from __future__ import annotations

import base64
import json
import random
import string

import pytest
from costs import least_cpu_seconds

from atoll.errors import ConfigError
from atoll.text import redact
from atoll.text.redact import SHORTEST_KNOWN, Redactor, secrets_of

LETTERS = string.ascii_letters + string.digits
DICE = random.Random(8)


def noise(size, alphabet=LETTERS):
    """Made here, so that no scanner of repositories finds a secret in this file."""
    return "".join(DICE.choices(alphabet, k=size - 1)) + "7"


KEY_LINES = "\n".join(noise(64) for _ in range(3)) + "\n" + noise(11) + "="
SECRETS = [
    ("aws-key", "AKIA" + noise(16, string.ascii_uppercase)),
    ("github-token", "ghp_" + noise(36)),
    ("github-token", "github_pat_" + noise(22) + "_" + noise(59)),
    ("gitlab-token", "glpat-" + noise(20)),
    ("slack-token", "xoxb-" + noise(12, string.digits) + "-" + noise(24)),
    ("stripe-key", "sk_live_" + noise(24)),
    ("openai-key", "sk-" + noise(48)),
    ("openai-key", "sk-proj-" + noise(60) + "-" + noise(40)),
    ("anthropic-key", "sk-ant-api03-" + noise(90)),
    ("google-key", "AIza" + noise(35)),
    ("google-key", "ya29." + noise(60)),
    ("huggingface-token", "hf_" + noise(34)),
    ("npm-token", "npm_" + noise(36)),
    ("pypi-token", "pypi-Ag" + noise(100)),
    ("sendgrid-key", f"SG.{noise(22)}.{noise(43)}"),
    ("square-key", "sq0csp-" + noise(43)),
    ("telegram-token", noise(9, string.digits) + ":AA" + noise(33)),
    ("twilio-key", "SK" + noise(32, "0123456789abcdef")),
    ("mailchimp-key", noise(32, "0123456789abcdef") + "-us12"),
    ("artifactory-token", "AKC" + noise(40)),
    ("discord-token", f"M{noise(23)}.{noise(6)}.{noise(27)}"),
    ("jwt", f"eyJ{noise(30)}.eyJ{noise(60)}.{noise(43)}"),
    ("private-key", f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_LINES}\n-----END RSA PRIVATE KEY-----"),
]


@pytest.mark.parametrize(("kind", "secret"), SECRETS)
def test_a_secret_is_replaced_by_its_kind_wherever_it_stands(kind, secret):
    mark = f"[redacted: {kind}]"
    for around in ("{}", "before {} after", "x = '{}'", "<{}>", "a\n{}\nb", "({}), ok"):
        examined = Redactor().examine(around.format(secret))
        assert examined.text == around.format(mark)
        assert examined.counts == {kind: 1}
    in_json = json.dumps({"text": f"line\n{secret}\nline"})
    assert Redactor().redact(in_json) == json.dumps({"text": f"line\n{mark}\nline"})


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("password=hunter2", "password=[redacted: password]"),
        ("password: hunter2 # yaml", "password: [redacted: password] # yaml"),
        ('"password": "correct-horse"', '"password": "[redacted: password]"'),
        ('{\\"password\\": \\"hunter2!\\"}', '{\\"password\\": \\"[redacted: password]\\"}'),
        ("DB_PASSWORD=correcthorse\nX=1", "DB_PASSWORD=[redacted: password]\nX=1"),
        ("db_passwd = 'abcd'", "db_passwd = '[redacted: passwd]'"),
        ("aws_secret_access_key = a/b+c1d2e3f4", "aws_secret_access_key = [redacted: secret]"),
        ("api_key='0123abcd'", "api_key='[redacted: api_key]'"),
        ("?api-key=0a1-b2c3-d4&x=1", "?api-key=[redacted: api-key]&x=1"),
        ('client_secret => "s3cr3t"', 'client_secret => "[redacted: secret]"'),
        ("TOKEN=abcDEF123456", "TOKEN=[redacted: token]"),
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer [redacted: authorization]"),
        ("-H 'authorization: token 0123456789abcdef'", "-H 'authorization: token [redacted: authorization]'"),
        ("Basic dXNlcjpwYXNzd29yZA==", "Basic [redacted: authorization]"),
        ("postgres://me:pa55!@db:5432/x", "postgres://me:[redacted: url-password]@db:5432/x"),
        ("AccountName=me;AccountKey=" + "Ab3/" * 20 + "Q==;E=x", "AccountName=me;AccountKey=[redacted: azure-key];E=x"),
        ("redis://:pa55@db", "redis://:[redacted: url-password]@db"),
    ],
)  # fmt: skip
def test_what_is_assigned_to_a_secret_name_is_replaced_and_the_name_stays(text, redacted):
    assert Redactor().redact(text) == redacted
    assert Redactor().redact(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "password = getpass.getpass()",
        "password=password, token=token, api_key=self.api_key",
        "def login(user: str, password: str = DEFAULT_PASSWORD) -> Token: ...",
        "token = tokens[index + 1]; secret = sha256(data2).hexdigest()",
        "max_tokens=4096, token_count = 123456, tokens: 200000",
        'api_key = os.environ["API_KEY"]; password = "${DB_PASSWORD}"; secret = "<your secret>"',
        'PASSWORD_HEADER = "X-Password-2"; token_url = "https://example.org/token2"',
        '{"token": "the", "next_token": "running", "password": "********"}',
        "Enter your password: it must have 8 characters. The secret: practise daily.",
        "A bearer token is sent as Authorization: Bearer <token>",
        "basic authentication and bearer authentication-schemes",
        "https://example.org:8080/a@b and http://host/path:x@y, mailto:me@example.org",
        "https://{user}:{password}@host/",
        "if '-----BEGIN RSA PRIVATE KEY-----' in text: raise ValueError",
        "the class sk-fading-circle-container-element and disk-full-alert-1234567890",
        "commit 027eceaea76620f61ce24bd764dcf48f698f2620",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "550e8400-e29b-41d4-a716-446655440000",
        "SG.list, AKC, sq0csp and 12:AA are how others begin; MODULE.config.attribute_of_a_class",
        "md5 d41d8cd98f00b204e9800998ecf8427e-usable, ACID, SKETCH",
        "AKIA, ASIA, ghp_ and xoxb- are how keys begin; AKIAISNOTAKEY too",
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "eyJhbGciOiJIUzI1NiJ9 is the head of one",
        "secret_key_file = '/etc/keys/1.pem'; private_key_path: /home/me/.ssh/id_ed25519",
        "hf_hub_download, npm_config_registry, sk_learn_pipeline_with_a_long_name",
        "arn:aws:secretsmanager:*:*:secret:aws/ssm/3p",
    ],
)
def test_ordinary_text_stays_as_it_is(text):
    assert Redactor().examine(text).text == text
    assert Redactor().examine(text).counts == {}


def test_a_private_key_that_was_cut_is_gone_and_the_text_after_it_stays():
    key = f"-----BEGIN PRIVATE KEY-----\n{KEY_LINES}\n-----END PRIVATE KEY-----"
    cut = key[: len(key) // 2]
    assert Redactor().redact(f"{cut}\n... and so on") == "[redacted: private-key]\n... and so on"


VALUE = 'p"s w€rd/+%7Q'


@pytest.mark.parametrize(
    "disguised",
    [
        VALUE,
        json.dumps(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        "p%22s%20w%E2%82%ACrd%2F%2B%257Q",
        "p%22s+w%E2%82%ACrd%2F%2B%257Q",
        VALUE.encode().hex(),
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
        *(base64.b64encode(b"u" * n + VALUE.encode() + b":more").decode() for n in range(6)),
    ],
)
def test_a_known_value_is_found_as_it_is_and_encoded(disguised):
    examined = Redactor({"DB_PASSWORD": VALUE}).examine(f"<{disguised}>")
    assert "[redacted: DB_PASSWORD]" in examined.text
    assert examined.counts == {"DB_PASSWORD": 1}
    assert VALUE not in examined.text


def test_known_values_without_names_are_called_known():
    assert Redactor(["swordfish"]).redact("a swordfish!") == "a [redacted: known-value]!"
    assert Redactor({"a\nb": "swordfish"}).redact("swordfish") == "[redacted: known-value]"


def test_of_two_known_values_the_longer_is_replaced_whole():
    redactor = Redactor({"A": "swordfish", "B": "swordfish-and-more"})
    assert redactor.redact("swordfish-and-more swordfish") == "[redacted: B] [redacted: A]"


def test_a_known_value_that_is_too_short_is_refused_without_being_shown():
    Redactor(["a" * SHORTEST_KNOWN])
    with pytest.raises(ConfigError) as caught:
        Redactor({"PIN": "12q45"})
    expected = "a known secret must have at least 6 characters, 'PIN' has 5: leave it out"
    assert str(caught.value) == expected


def test_the_secret_ones_of_the_environment_are_told_by_their_names():
    environ = {
        "OPENAI_API_KEY": "0123456789ab",
        "GITHUB_TOKEN": "correct-horse-battery",
        "MY_PASSWORD": "sword7fish+whale",
        "DATABASE_URL": "postgres://a:b@c",
        "SHORT_SECRET": "yes",
        "POSTGRES_PASSWORD": "postgres",
        "A_TOKEN": "aaaaaaaaaaaaaaaa",
        "ADMIN_PASSWORD": "administrator",
        "OTHER_PASSWORD": "password123",
        "HOME": "/home/me",
        "PWD": "/home/me",
        "KEYBOARD": "qwertz-layout",
        "PATH": "/usr/bin",
    }
    assert list(secrets_of(environ)) == list(environ)[:4]


@pytest.mark.parametrize(
    "shape",
    [
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\n" + "A" * 20 + "\n",
        "eyJaaaaaaaaaa.",
        "-eyJaaaaaaaaaa",
        "eyJaaaaaaaaaa.eyJaaaaaaaaaa",
        "token=",
        "password='",
        'password="a',
        "token:token= \"'",
        "://a:b",
        "://" + "a" * 300,
        "sk-", "AKIA", "xoxb-1", "bearer ", "Authorization: ", "github_pat_", "hooks.slack.com/services/",
        "secret" + " " * 9, "A1",
    ],
)  # fmt: skip
def test_time_is_linear_in_the_text(shape):
    redactor = Redactor(["swordfish"])

    def cost(size):
        text = shape * (size // len(shape))
        return least_cpu_seconds(lambda: redactor.redact(text))

    assert cost(128_000) < 80 * max(cost(8_000), 1e-3)


def test_a_known_value_is_found_without_the_spaces_around_it_and_as_python_writes_it():
    redactor = Redactor({"TOKEN": " correct horse\n", "PASSWORD": "p\u00e4ss'w\"ord\\x"})
    assert redactor.redact("it is correct horse!") == "it is [redacted: TOKEN]!"
    for write in (repr, ascii, lambda value: repr([value, '"'])):
        assert "ord" not in redactor.redact(write("p\u00e4ss'w\"ord\\x"))


@pytest.mark.parametrize("gap", range(-60, 60, 7))
def test_secrets_are_found_where_two_stretches_meet(gap):
    before = "x " * ((redact.STRETCH + gap) // 2)
    for secret in ("password = 'hunter2hunter2'", "sk-proj-" + "a1" * 20, "sk-proj-" + "a1" * 9000):
        found = Redactor().redact(f"{before}{secret} after")
        assert found.startswith(before)
        assert found.endswith(" after")
        assert "a1a1" not in found
        assert "hunter2" not in found


def test_a_long_text_is_searched_in_stretches_and_to_the_same_effect(monkeypatch):
    text = "".join(f"{n} password='pw{n}pw{n}' AKIA{n:016d} {'y' * (n % 90)}" for n in range(300))
    monkeypatch.setattr(redact, "STRETCH", 10**9)
    whole = Redactor().redact(text)
    for size in (50, 333, 1000):
        monkeypatch.setattr(redact, "STRETCH", size)
        assert Redactor().redact(text) == whole
