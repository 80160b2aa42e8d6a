use super::*;

/// Formats the arguments with each secret found in brackets.
fn in_arguments(arguments: &[&str], names: &SecretNames) -> Vec<String> {
    arguments.iter().zip(text::in_arguments(arguments, names)).map(|(text, found)| bracketed(text, &found)).collect()
}

fn bracketed(text: &str, found: &[Found]) -> String {
    let mut shown = text.to_owned();
    for Found { range, .. } in found.iter().rev() {
        shown.replace_range(range.clone(), &format!("[{}]", &text[range.clone()]));
    }
    shown
}

fn in_variable(name: &str, value: &str) -> String {
    bracketed(value, &text::in_variable(name, value, &SecretNames::default()))
}

#[test]
fn names_of_secrets_are_known_by_their_parts_whatever_their_case() {
    let names = SecretNames::default();
    let secret = "HF_TOKEN GITHUBTOKEN hf_token authToken X-Auth-Token PGPASSWORD MYSQL_PWD DB_PASS SMTP_PASSWD SSH_PASSPHRASE \
                  CLIENT_SECRET clientSecret AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID WANDB_API_KEY OPENAI_APIKEY apiKey \
                  SIGNING_KEY TLS_PRIVATE_KEY_PEM GOOGLE_APPLICATION_CREDENTIALS SESSION_ID HTTP_COOKIE BASIC_AUTH KEY \
                  AZURE_STORAGE_CONNECTION_STRING NPM_CONFIG__AUTHTOKEN --token -password --api-key --hub.token JWT";
    let plain = "PATH PWD OLDPWD HOME TOKENIZERS_PARALLELISM MAX_TOKENS KEYBOARD MONKEY AUTHOR KEY_FILE --tokenizer --lr \
                 OMP_NUM_THREADS PASSES BYPASS COMPASS SESSIONLESS MASTER_ADDR";
    let wrong: Vec<&str> = secret.split_whitespace().filter(|name| !names.cover(name)).collect();
    assert_eq!(wrong, [] as [&str; 0], "these are secrets");
    let wrong: Vec<&str> = plain.split_whitespace().filter(|name| names.cover(name)).collect();
    assert_eq!(wrong, [] as [&str; 0], "these are none");
}

#[test]
fn a_job_adds_names_and_exempts_names() {
    let names = SecretNames::default().with("acme_licence").without("SORT_KEY").with("both").without("BOTH");
    assert!(names.cover("ACME_LICENCE") && names.cover("--acme-licence") && names.cover("HF_TOKEN"));
    assert!(!names.cover("sort_key") && !names.cover("--sort-key") && !names.cover("both"));
    let exempt = text::in_variable("SORT_KEY", "https://a:b@c", &names);
    assert_eq!(exempt, [], "nothing is looked for in what is exempt");
}

#[test]
fn the_user_part_of_a_url_is_found_whatever_the_variable_is_called() {
    assert_eq!(
        in_variable("INDEX", "https://me:pw@pypi.example:8080/simple"),
        "https://[me:pw]@pypi.example:8080/simple"
    );
    assert_eq!(in_variable("A", "https://k@h https://x:y@i/?a=b@c"), "https://[k]@h https://[x:y]@i/?a=b@c");
    assert_eq!(in_variable("A", "redis://:pw@h/0"), "redis://[:pw]@h/0");
    assert_eq!(in_variable("A", "postgres://u:p@ss@h"), "postgres://[u:p@ss]@h");
    for plain in ["https://pypi.example/@scope", "tcp://10.0.0.1:29500", "://", "https://", "a@b", "https://$T@h"] {
        assert_eq!(in_variable("A", plain), plain);
    }
}

#[test]
fn secrets_in_arguments_are_found_in_each_of_their_forms() {
    let none = SecretNames::default();
    assert_eq!(
        in_arguments(
            &["train", "--token=a=b c", "--password", "x y", "--auth", "--lr", "1", "+wandb.api_key=k"],
            &none
        ),
        ["train", "--token=[a=b c]", "--password", "[x y]", "--auth", "--lr", "1", "+wandb.api_key=[k]"]
    );
    assert_eq!(in_arguments(&["--password=$ecret"], &none), ["--password=[$ecret]"], "no shell reads an argument");
    assert_eq!(in_arguments(&["--token"], &none), ["--token"]);
    assert_eq!(in_arguments(&["--token", ""], &none), ["--token", ""]);
    assert_eq!(in_arguments(&["-H", "Authorization: Bearer a.b"], &none), ["-H", "Authorization: [Bearer a.b]"]);
    let script = "export A=1 HF_TOKEN=abc; curl -H 'X-Api-Key: k y' \"https://u:p@h/?token=t&x=1\" --password p|cat";
    let found =
        "export A=1 HF_TOKEN=[abc]; curl -H 'X-Api-Key: [k y]' \"https://[u:p]@h/?token=[t&x=1]\" --password [p]|cat";
    assert_eq!(in_arguments(&["sh", "-c", script], &none)[2], found);
    let looked_up =
        "run --token $HF_TOKEN --password \"$PW\" API_KEY=${K} KEY=${K:-x} TOKEN=$(cat t) [ $key == x ] TOKEN= x";
    assert_eq!(in_arguments(&[looked_up], &none), [looked_up], "names without values");
    assert_eq!(in_variable("CONFIG", r#"{"api_key": "a\"b", "lr": 1}"#), r#"{"api_key": "[a\"b]", "lr": 1}"#);
    assert_eq!(in_variable("CONFIG", "user: me\npassword: pw x\nlr: 1"), "user: me\npassword: [pw x]\nlr: 1");
    assert_eq!(in_variable("CONFIG", "token = 'ab c'\nlr = 1"), "token = '[ab c]'\nlr = 1");
}

/// A program can print the mark itself.
#[test]
fn a_text_with_the_mark_of_a_secret_in_it_is_looked_at_like_any_other() {
    let names = SecretNames::default();
    let line = ["a <redacted> --password=hunter2".to_owned(), "--token".to_owned(), "<redacted:TOKEN>".to_owned()];
    assert_eq!(shown_arguments(&line, &names), ["a <redacted> --password=<redacted>", "--token", "<redacted:TOKEN>"]);
}

#[test]
fn spellings_that_are_rarer_are_found_too() {
    let none = SecretNames::default();
    for (text, found) in [
        // Characters that people use in passwords although a URL requires them to be escaped.
        ("https://u:p#w?d'x@h/a", "https://[u:p#w?d'x]@h/a"),
        ("https://$ecret:$pw@h", "$"),
        ("https://u:$ecret!@h", "https://[u:$ecret!]@h"),
        ("https://h?to=a@b", "https://h?to=a@b"),
        ("https://$USER:${PW}@h", "https://$USER:${PW}@h"),
        ("https://o'brien:pw@h", "https://[o'brien:pw]@h"),
        (r#"{"url": "https:\/\/me:pw@h"}"#, r#"{"url": "https:\/\/[me:pw]@h"}"#),
        // Other languages.
        ("Server=a;Pwd=x;Uid=b", "Server=a;Pwd=[x];Uid=b"),
        ("Password=a&b", "Password=[a&b]"),
        ("x=1;token=f\"a b\"", "x=1;token=f\"[a b]\""),
        ("x=1;password = [\"a\"]", "x=1;password = [[\"a\"]]"),
        ("x=1\npassword = \"\"\"a\"b\"\"\"", "x=1\npassword = \"\"\"[a\"b]\"\"\""),
        ("lr: 1\npassword: a,b", "lr: 1\npassword: [a,b]"),
        ("a=1; PASSWORD+=x", "a=1; PASSWORD+=[x]"),
        ("os.environ[\"HF_TOKEN\"] = \"x\"", "os.environ[\"HF_TOKEN\"] = \"[x]\""),
        ("run --password \\\n x", "run --password \\\n [x]"),
        (r#"{"password": "$ecr3t"}"#, r#"{"password": "[$ecr3t]"}"#),
        // Shells.
        ("a; PASSWORD=$'x y'", "a; PASSWORD=$'[x y]'"),
        ("a; PASSWORD=x\"secret\"", "a; PASSWORD=[x\"secret\"]"),
        ("a; PASSWORD=\"hun\"ter2 b", "a; PASSWORD=\"[hun\"ter2] b"),
        ("a; PASSWORD=hun\\ ter2 b", "a; PASSWORD=[hun\\ ter2] b"),
        ("password => x", "password => [x]"),
        ("password: str = 'x'", "password: str = '[x]'"),
        // YAML values on several lines, or after a comment or a tag.
        ("password:\r\n  x\r\nlr: 1", "password:\r\n[  x\r\n]lr: 1"),
        ("password:  # mine\n  x\nlr: 1", "password:  # mine\n[  x\n]lr: 1"),
        ("password: !!str\n  x\nlr: 1", "password: !!str\n[  x\n]lr: 1"),
        ("password: a\n  b\nlr: 1", "password: [a\n  b\n]lr: 1"),
        // JSON within a JSON string.
        (r#"{"env": "{\"api_key\": \"a b\", \"lr\": 1}"}"#, r#"{"env": "{\"api_key\": \"[a b]\", \"lr\": 1}"}"#),
        // Lists and objects.
        (r#"{"api_keys": ["a", "b"], "lr": 1}"#, r#"{"api_keys": [["a", "b"]], "lr": 1}"#),
        (
            r#"{"credentials": {"user": "u", "pin": [1]}, "lr": 1}"#,
            r#"{"credentials": [{"user": "u", "pin": [1]}], "lr": 1}"#,
        ),
        // Blocks of YAML.
        ("password: |\n  a\n\n  b\nlr: 1", "password: |\n[  a\n\n  b\n]lr: 1"),
        ("x:\n  api_keys:\n  - a\n  - b\n  lr: 1", "x:\n  api_keys:\n[  - a\n  - b\n]  lr: 1"),
        ("secrets:\n  a: b\nlr: 1", "secrets:\n[  a: b\n]lr: 1"),
        // Private keys, with any variable name.
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----[\nMIIE\n]-----END RSA PRIVATE KEY-----\n",
        ),
        (
            "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
            "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        ),
    ] {
        let found = if found == "$" { text } else { found };
        assert_eq!(in_variable("A", text), found);
    }
    assert_eq!(
        in_arguments(&["--token", "-abc", "--auth", "--lr", "1"], &none),
        ["--token", "[-abc]", "--auth", "--lr", "1"]
    );
    assert_eq!(in_arguments(&["--auth", "-password", "x"], &none), ["--auth", "-password", "[x]"]);
    for open in [
        "key: [",
        "key: {{]",
        "key:\n",
        "key: |",
        "-----BEGIN PRIVATE KEY-----",
        "key=\\\"",
        "key: \\",
        "key: ]",
        "key:\n ",
    ] {
        let _ = in_variable("A", open); // truncated text must not panic
    }
}

#[test]
fn people_are_shown_no_secret() {
    let names = SecretNames::default().with("licence");
    let shown = shown_arguments(&["a", "--token", "x", "--key=y", "--licence=z"], &names);
    assert_eq!(shown, ["a", "--token", "<redacted>", "--key=<redacted>", "--licence=<redacted>"]);
    assert_eq!(shown_variable("DB_PASSWORD", "x", &names), "<redacted>");
    assert_eq!(shown_variable("LICENCE", "x", &names), "<redacted>");
    assert_eq!(shown_variable("A", "http://u:p@h", &names), "http://<redacted>@h");
    assert_eq!(shown_variable("A", "<redacted:X>", &names), "<redacted:X>");
}
