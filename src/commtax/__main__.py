from commtax.cli import main

main()
