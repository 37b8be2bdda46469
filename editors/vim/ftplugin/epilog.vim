" Comments, indentation, and :make and gq by the command.
if exists("b:did_ftplugin")
  finish
endif
let b:did_ftplugin = 1
setlocal commentstring=#\ %s comments=:# expandtab shiftwidth=4 softtabstop=4
setlocal makeprg=epilog\ check\ % errorformat=epilog:\ %f:%l:%c:\ %m
setlocal formatprg=epilog\ fmt\ -
let b:undo_ftplugin = "setlocal commentstring< comments< expandtab< shiftwidth< softtabstop< makeprg< errorformat< formatprg<"
