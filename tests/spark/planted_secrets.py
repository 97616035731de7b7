"""Secrets as they occur in options, URLs, JAAS strings and environment variables."""

# Split where a secret scanner would report the literal.
PLANTED = {
    "password=hunter2-{n}": "hunter2-{n}",
    "password: 'pa ss {n}'": "pa ss {n}",
    '"password": "json-{n}"': "json-{n}",
    "kafka.ssl.keystore.password=store-{n}": "store-{n}",
    "ssl.truststore.password = trust-{n}": "trust-{n}",
    "sasl.jaas.config=o.a.k.PlainLoginModule required user='u' password='jaas-{n}';": "jaas-{n}",
    'kafka.sasl.jaas.config="x required password=\\"deep-{n}\\";"': "deep-{n}",
    "jdbc:postgresql://me:dbpw-{n}@db/shop": "dbpw-{n}",
    "jdbc:sqlserver://db;user=sa;password=sql-{n};encrypt=true": "sql-{n}",
    "https://user:http-{n}@example.org/path": "http-{n}",
    "https://user:p@http-at-{n}@example.org/path": "http-at-{n}",
    "s3a://key{n}:s3secret-{n}@bucket/x": "s3secret-{n}",
    "fs.s3a.secret.key=s3key-{n}": "s3key-{n}",
    "fs.s3a.access.key=s3id-{n}": "s3id-{n}",
    "fs.azure.account.key.shop.dfs.core=azkey-{n}==": "azkey-{n}",
    "AWS_SECRET_ACCESS_KEY=awssecret-{n}": "awssecret-{n}",
    "SharedAccessKey=shared-{n}=": "shared-{n}",
    "https://x.blob/a?sv=1&sig=sas-{n}%3D&se=2": "sas-{n}",
    "Authorization: Bearer bearer-{n}-abcdefgh": "bearer-{n}",
    "authorization=Basic basic-{n}-abcdefgh": "basic-{n}",
    "--token tok": None,
    "token=tok-{n}": "tok-{n}",
    "DATABRICKS_TOKEN=dapi" + "0123456789abcdef" * 2: "dapi" + "0123456789abcdef" * 2,
    "the key AKIA" + "ABCDEFGHIJKLMNOP was used": "AKIA" + "ABCDEFGHIJKLMNOP",
    "jwt eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl": "c2lnbmF0dXJl",
    "api_key=api-{n}": "api-{n}",
    "client.secret=client-{n}": "client-{n}",
    "-----BEGIN PRIVATE KEY-----\nMIIE{n}\n-----END PRIVATE KEY-----": "MIIE{n}",
}


def planted(numbers: tuple[int, ...] = (1, 2)) -> tuple[list[str], list[str]]:
    """More than fifty strings, and the secrets in them."""
    secrets, texts = [], []
    for n in numbers:
        for text, secret in PLANTED.items():
            texts.append(text.replace("{n}", f"{n}zq"))
            if secret is not None:
                secrets.append(secret.replace("{n}", f"{n}zq"))
    return texts, secrets
