use super::super::{Grantee, KeyArg, KeysArgs, wants_json};
use super::*;

fn said(words: &str) -> Result<Said, Failure> {
    parse(words.split_whitespace().map(OsString::from))
}

fn verb(words: &str) -> Verb {
    match said(words) {
        Ok(Said::Do(_, verb)) => *verb,
        other => panic!("{words}: {other:?}"),
    }
}

fn mistake(words: &str) -> String {
    match said(words) {
        Err(failure) => failure.to_string(),
        other => panic!("{words}: {other:?}"),
    }
}

#[test]
fn a_verb_takes_the_options_of_every_verb_before_and_behind_it() {
    for words in ["--json --credential /b list --operator", "list --operator --json --credential=/b"] {
        let Ok(Said::Do(global, verb)) = said(words) else { panic!("{words}") };
        assert!(matches!(*verb, Verb::List(_)), "{words}");
        assert_eq!(global, Global { json: true, credential: Some("/b".into()), operator: true });
    }
}

#[test]
fn help_is_given_wherever_it_is_asked_for() {
    for words in ["--help", "-h", "help"] {
        assert_eq!(said(words), Ok(Said::Help(Topic::Usher)), "{words}");
    }
    for words in ["list --help", "list --repo . -h", "help list", "--json list --help"] {
        assert_eq!(said(words), Ok(Said::Help(Topic::List)), "{words}");
    }
    assert_eq!(said("--version"), Ok(Said::Version));
    assert_eq!(said("-V"), Ok(Said::Version));
}

#[test]
fn a_mistake_is_told_with_the_help_of_its_verb() {
    assert!(mistake("").contains("no verb was given; usher --help"));
    assert!(mistake("frobnicate").contains("there is no such verb"));
    assert!(
        mistake("list --force").contains("invalid option '--force'; usher list --help"),
        "{}",
        mistake("list --force")
    );
    assert!(mistake("list --frob").contains("--frob"));
    assert!(mistake("list extra").contains("extra"));
    assert!(mistake("list --repo a --repo b").contains("--repo was given twice"));
    assert!(mistake("list --json=yes").contains("--json"));
    assert!(mistake("send").contains("no command"));
    assert!(mistake("send a 1 2").contains("more than one input"));
    assert!(mistake("send a 1 --text b").contains("more than one input"));
    assert!(mistake("send a --deadline soon").contains("soon"));
    assert!(mistake("rpc m - --payload -").contains("once"));
    assert!(mistake("rpc m --role king").contains("king"));
}

#[test]
fn send_takes_a_selector_a_command_and_one_input() {
    let Verb::Send(args) = verb("send --repo . --label a=b --label c=d reload @in --deadline 30s") else { panic!() };
    assert_eq!(args.selector.repo, Some(".".into()));
    assert_eq!(args.selector.labels, [("a".into(), "b".into()), ("c".into(), "d".into())]);
    assert_eq!(args.command, "reload");
    assert_eq!(args.input, Some(Input::File("in".into())));
    assert_eq!(args.deadline, Some(Duration::from_secs(30)));
    let Verb::Send(args) = verb("send -- reload -5") else { panic!() };
    assert_eq!(args.input, Some(Input::Json("-5".into())));
    let Verb::Send(args) = verb("send reload -") else { panic!() };
    assert_eq!(args.input, Some(Input::Stdin));
    let Verb::Send(args) = verb("send reload --text -") else { panic!() };
    assert_eq!(args.input, Some(Input::Text("-".into())));
}

#[test]
fn events_take_a_place_to_begin_kinds_and_a_selector() {
    let Verb::Events(args) = verb("events --follow --since start --kind a --kind b --repo . --title t") else {
        panic!()
    };
    assert_eq!((args.follow, args.since.as_deref(), args.kinds), (true, Some("start"), vec!["a".into(), "b".into()]));
    assert_eq!((args.selector.repo, args.selector.title), (Some(".".into()), Some("t".into())));
    assert_eq!(verb("events"), Verb::Events(EventsArgs::default()));
    assert!(mistake("events --since").contains("--since"));
    assert!(mistake("events session-gone").contains("session-gone"));
}

#[test]
fn a_session_prefix_may_begin_with_a_dash() {
    let Verb::Get(selector) = verb("get --session -abcd") else { panic!() };
    assert_eq!(selector.session, Some("-abcd".into()));
}

#[test]
fn the_words_behind_the_program_of_run_are_the_programs() {
    let Verb::Run(args) = verb("run --title t --on a=b=c --label k=v vim --json -x -- --help") else { panic!() };
    assert_eq!(args.command, ["vim", "--json", "-x", "--", "--help"]);
    assert_eq!(args.on, [("a".into(), "b=c".into())]);
    assert_eq!(args.named.max_in_flight, None);
    let Verb::Run(args) = verb("run --max-in-flight 4 -- --odd") else { panic!() };
    assert_eq!((args.command, args.named.max_in_flight), (vec!["--odd".into()], Some(4)));
    assert!(mistake("run").contains("no program"));
    assert!(mistake("run --max-in-flight 65 x").contains("1 to 64"));
    assert!(mistake("run --on a=b --on a=c x").contains("twice"));
}

#[test]
fn an_attached_session_is_named_and_has_its_commands() {
    let Verb::Attach(args) = verb("attach --title t --label k=v --command a --command b --max-in-flight 2") else {
        panic!()
    };
    assert_eq!((args.commands, args.named.title), (vec!["a".into(), "b".into()], Some("t".into())));
    assert_eq!((args.named.labels["k"].as_str(), args.named.max_in_flight), ("v", Some(2)));
    assert!(mistake("attach --command a --command a").contains("twice"));
    assert!(mistake("attach --label k=v --label k=w").contains("twice"));
    assert!(mistake("attach program").contains("program"));
}

#[test]
fn a_new_key_says_what_it_may_do() {
    let Verb::Keys(KeysArgs::New { grant, out }) =
        verb("keys new --label l --scope session.list --repo a --label-match k=v --repo b --expires 8h --out d")
    else {
        panic!()
    };
    assert_eq!((grant.label.as_str(), grant.role, out), ("l", Role::Caller, "d".into()));
    assert_eq!(grant.scopes, Some(vec!["session.list".to_owned()]));
    assert_eq!(grant.sessions.len(), 2);
    assert_eq!(grant.sessions[0].repo, Some("a".into()));
    assert_eq!(grant.sessions[0].labels, [("k".into(), "v".into())]);
    assert_eq!(grant.sessions[1].repo, Some("b".into()));
    assert!(mistake("keys new --label l --out d").contains("session.send"));
    assert!(mistake("keys new --label l --row --scope a --out d").contains("--row"));
    assert!(mistake("keys new --row --out d").contains("--label"));
    assert!(mistake("keys new --label l --row").contains("--out"));
    assert!(mistake("keys new --label l --row --public-key x").contains("--public-key"));
}

#[test]
fn a_roles_word_names_its_default() {
    let renew = |words| match verb(words) {
        Verb::Keys(KeysArgs::Renew { who, .. }) => who,
        other => panic!("{other:?}"),
    };
    assert_eq!(renew("keys renew caller"), Grantee::Default(Role::Caller));
    assert_eq!(renew("keys renew sandbox --expires 8h"), Grantee::Credential("sandbox".into()));
    let Verb::Keys(KeysArgs::Enroll { public_key, .. }) = verb("keys enroll --label l --row --public-key @f") else {
        panic!()
    };
    assert_eq!(public_key, KeyArg::File("f".into()));
    assert!(mistake("keys revoke").contains("name a credential"));
    assert!(mistake("keys").contains("list, show"));
}

#[test]
fn json_is_seen_also_where_the_words_are_a_mistake() {
    let wants = |words: &str| wants_json(&words.split_whitespace().map(OsString::from).collect::<Vec<_>>());
    assert!(wants("list --json --bogus"));
    assert!(!wants("send -- --json"));
    assert!(!wants("run prog --json"));
    assert!(!wants("run --title x -- prog --json"));
    assert!(wants("run --json --bogus"));
    assert!(wants("run --title x --json -- prog"));
}
