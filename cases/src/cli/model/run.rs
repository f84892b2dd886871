//! The command when the feature is on.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use kernels::device::{DeviceError, DeviceKind, StreamId};
use kernels::route::Knobs;
use oracle::Format;

use super::{CheckChoice, Failure, Kv, Model};
use crate::devices;
use crate::executor::DeviceSpec;
use crate::model::check::Checks;
use crate::model::claim::{Claim, Tally, divergence};
use crate::model::decoder::Decoder;
use crate::model::engine::Launching;
use crate::model::error::ModelError;
use crate::model::generate::Plan;
use crate::model::gguf::Gguf;
use crate::model::perplexity::{Perplexity, perplexity};
use crate::model::report;
use crate::model::scenarios::Prompts;
use crate::model::session::{Served, Session};
use crate::model::tokenizer::Tokenizer;

/// Most rows of one prefill step of a text: bounds the host's memory, and the dense scratch of a step.
const TEXT_CHUNK: usize = 512;

impl Model {
    pub fn run(self) -> Result<u8, Failure> {
        if !self.in_process {
            return in_child();
        }
        crate::executor::live_with_parent();
        let prompt = match &self.prompt_file {
            Some(file) => read_text(file)?,
            None => self.prompt.clone(),
        };
        let launching = Launching {
            arm: self.arm,
            knobs: Knobs::from_env().map_err(|error| Failure::usage(error.to_string()))?,
        };
        let chosen = self.device.choose()?;
        let spec = DeviceSpec { kind: chosen.kind, checked: self.checked, schedule: None };
        let device = devices::open(&spec).map_err(|error| Failure::surroundings(error.to_string()))?;
        let mut gguf = Gguf::open(&self.file).map_err(unreadable)?;
        let tokenizer = Tokenizer::from_gguf(&gguf).map_err(unreadable)?;
        let model = Decoder::from_gguf(&mut gguf).map_err(unreadable)?;
        let session = Session {
            model: &model,
            tokenizer: &tokenizer,
            device,
            launching,
            checks: self.checks(),
            page_size: self.page_size,
            seed: self.seed,
            calibrate: self.calibrate,
        };
        let kind = match (chosen.kind, self.checked) {
            (DeviceKind::Simt, true) => "simt, every access checked",
            (kind, _) => kind.name(),
        };
        say(&format!("{}\ndevice: {kind}, {}", report::model_line(&model), chosen.detail))?;
        match self.judge(&session, &prompt) {
            Ok(claims) => {
                say(&report::claims(&claims))?;
                let tally = Tally::of(&claims);
                Ok(match (tally.failed, tally.passed) {
                    (0, 0) => 4,
                    (0, _) => 0,
                    _ => 1,
                })
            }
            Err(error) => failed(&session, &error),
        }
    }

    fn checks(&self) -> Checks {
        match self.check {
            CheckChoice::None => Checks::None,
            CheckChoice::Sampled => Checks::Sampled,
            CheckChoice::All => Checks::All,
        }
    }

    fn formats(&self) -> Vec<Format> {
        match self.kv {
            Kv::Bf16 => vec![Format::Bf16],
            Kv::E4m3 => vec![Format::E4m3],
            Kv::E5m2 => vec![Format::E5m2],
            Kv::Both => vec![Format::Bf16, Format::E4m3],
        }
    }

    /// Does everything that was asked for, and returns what is claimed.
    fn judge(&self, session: &Session<'_>, prompt: &str) -> Result<Vec<Claim>, Stop> {
        let tokenizer = session.tokenizer;
        let tokens = tokenizer.encode(prompt)?;
        say(&format!("prompt: {} tokens, {:?}\n", tokens.len(), shortened(prompt)))?;
        let plan = Plan { max_tokens: self.max_tokens, chunk: self.chunk, ends: Some(tokenizer) };
        let mut all = Vec::new();
        for format in self.formats() {
            anstream::eprintln!(
                "{format}: {} tokens of prompt, up to {} more",
                tokens.len(),
                self.max_tokens
            );
            all.push(session.serve(format, &tokens, plan)?);
        }
        say(&report::tokens(&all, tokenizer)?)?;
        say(&format!("largest share of its bound that any element used\n{}", report::shares(&all)))?;
        say(&report::speed(&all))?;
        let mut claims: Vec<Claim> = all.iter().flat_map(|served| served.claims.clone()).collect();
        claims.extend(same_tokens(&all, tokenizer));
        if self.scenarios {
            let other = tokenizer.encode(&self.other)?;
            for served in &all {
                anstream::eprintln!("{}: served in other ways", served.format);
                let prompts = Prompts { main: &tokens, other: &other };
                claims.extend(session.scenarios(served.format, prompts, plan, &served.generation)?);
            }
        }
        if let Some(file) = &self.perplexity {
            let text = tokenizer.encode(&read_text(file)?)?;
            let length = self.perplexity_tokens.unwrap_or(text.len()).min(text.len());
            let sums = self.perplexities(session, &text[..length], &mut claims)?;
            let (window, name) = (self.window, file.display());
            say(&format!("{name}: {length} tokens in windows of {window}\n{}", report::perplexities(&sums)))?;
        }
        Ok(claims)
    }

    fn perplexities(
        &self,
        session: &Session<'_>,
        text: &[u32],
        claims: &mut Vec<Claim>,
    ) -> Result<Vec<(String, Perplexity)>, Stop> {
        let mut sums = Vec::new();
        for format in [Format::Bf16, Format::E4m3, Format::E5m2] {
            anstream::eprintln!("{format}: perplexity over {} tokens", text.len());
            let scales = session.scales(format, &text[..text.len().min(self.window)])?;
            let mut engine = session.engine(format, self.window, scales)?;
            let chunk = self.chunk.unwrap_or(TEXT_CHUNK);
            sums.push((format.to_string(), perplexity(&mut engine, text, self.window, chunk)?));
            claims.push(crate::model::session::judged(&format!("{format}, the text"), &engine.judge));
            engine.release()?;
        }
        Ok(sums)
    }
}

/// The claim this command is about: other caches generate the tokens of the first.
fn same_tokens(all: &[Served], tokenizer: &Tokenizer) -> Vec<Claim> {
    let Some((first, others)) = all.split_first() else { return Vec::new() };
    let claim = |other: &Served| {
        let names = [first.format.to_string(), other.format.to_string()];
        let against = divergence((&names[0], &first.generation), (&names[1], &other.generation), tokenizer);
        let count = first.generation.choices.len();
        Claim::unless(format!("{} and {} give the same {count} tokens", names[0], names[1]), against)
    };
    others.iter().map(claim).collect()
}

/// Why a run stopped before its end.
enum Stop {
    Model(ModelError),
    Failure(Failure),
}

impl From<ModelError> for Stop {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// A run that stopped: against the kernels if they are to blame, else without a verdict.
fn failed(session: &Session<'_>, stop: &Stop) -> Result<u8, Failure> {
    let error = match stop {
        Stop::Failure(Failure { message, code }) => {
            return Err(Failure { message: message.clone(), code: *code });
        }
        Stop::Model(error) => error,
    };
    match error {
        ModelError::Argument { .. } | ModelError::Tokenizer { .. } => Err(Failure::usage(error.to_string())),
        ModelError::Launch(kernels::error::LaunchError::Unsupported(unsupported)) => {
            Err(Failure::usage(unsupported.to_string()))
        }
        _ if matches!(
            error.device(),
            Some(DeviceError::Environment(_) | DeviceError::OutOfMemory { .. })
        ) =>
        {
            Err(Failure::surroundings(error.to_string()))
        }
        _ => {
            let _ = session.device.synchronize(StreamId::DEFAULT);
            say(&report::claims(&[Claim::unless("the request is served", Some(error.to_string()))]))?;
            Ok(1)
        }
    }
}

/// Runs the same command in a child process, so that a kernel that crashes is named and does not take the verdict with it.
fn in_child() -> Result<u8, Failure> {
    let cannot =
        |error: std::io::Error| Failure::surroundings(format!("cannot run this program again: {error}"));
    let program = std::env::current_exe().map_err(cannot)?;
    let status = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--in-process")
        .status()
        .map_err(cannot)?;
    if let Some(code) = status.code().and_then(|code| u8::try_from(code).ok()) {
        return Ok(code);
    }
    let against = format!("the process that ran the kernels ended with {status}");
    say(&report::claims(&[Claim::unless("the kernels do not crash", Some(against))]))?;
    Ok(1)
}

fn unreadable(error: ModelError) -> Failure {
    Failure::usage(error.to_string())
}

fn read_text(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("{} cannot be read as text: {error}", file.display())))
}

/// The beginning of a text, short enough for one line.
fn shortened(text: &str) -> String {
    const MOST: usize = 72;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST).chain(['…']).collect()
}

fn say(text: &str) -> Result<(), Failure> {
    writeln!(anstream::stdout().lock(), "{text}")?;
    Ok(())
}
