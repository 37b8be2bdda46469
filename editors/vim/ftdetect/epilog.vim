autocmd BufNewFile,BufRead *.epi setfiletype epilog
