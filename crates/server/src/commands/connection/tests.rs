//! The example of CONTRIBUTING.md, compiled as it stands there.

use super::*;

const CONTRIBUTING: &str = include_str!("../../../../../CONTRIBUTING.md");

fn echo2(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.array(2);
    ctx.reply.bulk(ctx.args.argument(1));
    ctx.reply.bulk(ctx.args.argument(1));
    Ok(())
}

#[test]
fn the_example_handler_is_that_of_the_instructions() {
    let _: (&str, Binding) = ("echo2", leased(echo2));
    let start = concat!("fn echo", "2(");
    let source = include_str!("tests.rs");
    let function = source[source.find(start).unwrap()..]
        .split_inclusive("\n}\n")
        .next()
        .unwrap();
    for line in function.lines().chain(["(\"echo2\", leased(echo2)),"]) {
        assert!(CONTRIBUTING.contains(&format!("   {line}\n")), "{line}");
    }
}
