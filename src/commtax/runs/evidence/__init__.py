"""What every room of files uses: the words of a finding, who a model is, lines of text and names of collectives."""
