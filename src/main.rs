fn main() -> std::process::ExitCode {
    kuring::cli::main()
}
