"""The words in which models state a choice, as pieces of regular expressions. `choice.py` puts them together.

They cover English, and other languages in which the options have Latin letters.
"""

# What may be between two letters of a series, and what follows a single letter.
AND = r"[ ]?(?:,[ ]?(?:(?:and|or|nor)\b)?|(?:and|or|nor|y|et|ou|und|oder|e|o)\b|[&/、和与及或とや])[ ]?"
IS_ONE = r"\s?(?:is|was|does|has|fails|ist|es|est|é|è|项|項|选项|選項|错|不|有|が|는|가|이|은)"

# Before a letter: option C.
OPTION = (
    r"option|choice|letter|alternative|statement|item|opción|opcion|opção|opcao|opzione|alternativa|letra|lettre|"
    r"lettera|inciso|réponse|Antwort|respuesta|resposta|Buchstabe|вариант|variante?|lựa chọn|phương án|đáp án|ข้อ|"
    r"ตัวเลือก|선택지|보기|选项|選項|選択肢|الخيار|विकल्प|opsi|pilihan|seçenek|şık"
)

# What announces an answer in English, where `is` or a colon follows it.
ANSWER = (
    r"(?:answer|ans|solution|conclusion|selection|verdict|(?:option|choice|letter|response)(?!s))"
    r"(?:[ _](?:letter|choice|option|key|field)(?!s))?"
)
CORRECT_ONE = r"(?:correct|right|best)(?: one)?"
# In other languages: the first letter after it is the answer.
ANSWER_ELSEWHERE = (
    r"antwort|réponse|reponse|respuesta|resposta|risposta|antwoord|svaret|odpowiedź|odpověď|răspuns\w*|cevap|yanıt|"
    r"jawaban\w*|jibu|vastaus|ответ|відповідь|απάντηση|đáp án|câu trả lời|trả lời|คำตอบ|ตอบ|الإجابة|الاجابة|إجابة|"
    r"الجواب|جواب|پاسخ|תשובה|उत्तर|जवाब|উত্তর|பதில்|答案|答え|答|解答|正解|正答|回答|정답|답|opción correcta|"
    r"opción es|opção correta|alternativa correta|richtig ist|"
    r"(?:正确|错误|不正确|正確|符合题意)的?(?:选项|一项)?(?:是|为)|正しいのは"
)
# Where a sentence turns away from its answer.
ASIDE = r"\b(?:because|since|unless|but|choices|options|weil|porque|parce|perché|karena)\b|因为|因為"
BECAUSE = r"(?:because|since|as|weil|porque|pois|car|perché|karena|vì)\b|因为|因為"
IS = r"is|be|are|was|were|seems|appears|becomes|remains|'s"
CHOOSE = (
    r"(?:choos|select|pick)(?:e|es|ing|ed)?\b|chose\b|(?:go|going) with|opt(?:ed)? for|settle on|vote for|选择|"
    r"选(?!项)|選擇|選(?!項|択)|wähle|choisis|elijo|escolho|scelgo|выбираю|chọn|เลือก"
)
# In lower case only: a capital may be the choice.
SHORT_FILLER = r"a|o|il"
FILLER = (
    rf"the|an|indeed|clearly|therefore|thus|hence|most|likely|probably|definitely|actually|only|simply|just|then|in|"
    rf"fact|to|be|is|marked|labell?ed|given|by|also|still|answer|correct|right|best|final|my|la|el|le|der|die|das|是"
    rf"|为|為|は|은|는|là|adalah|ist|es|est|é|è|это|{OPTION}"
)
# After the letter: C is the correct answer.
IS_CORRECT = (
    r"(?:(?:is|would be|must be|should be|项|項|选项|選項|が|는|가|이|은|es|est|ist|é|è|là|是)\s?)?"
    r"(?:the |la |el |a |die |le |最)?(?:only |one |most |respuesta |réponse |resposta |bonne |đáp án )?"
    r"(?:correct\b|right\b|best\b|the answer\b|answer\b|正确|正確|符合题意|对的|正解|正しい|정답|맞|correct[ao]\b|"
    r"corret[ao]\b|bonne\b|réponse\b|richtig|đúng|ถูก|صحيح|верн|правильн|doğru|benar|सही)"
)
THEREFORE = (
    r"(?:therefore|thus|hence|consequently|so|must be|it is|it's|that is|that leaves|leaves|leaving|but rather|donc|"
    r"por lo tanto|por tanto|portanto|quindi|sondern|sino)(?![A-Za-z])|∴|→|=>|->|因此|所以|故|综上|而是|따라서|よって|"
    r"したがって|vậy|поэтому"
)
SUPPOSED = (
    r"\b(?:if|unless|suppose|assuming|whether|why|someone|some (?:people|students)|tempt\w*|mistakenly|wrongly|"
    r"(?:might|may|could|would) (?:think|say|assume|believe|expect))\b"
)
# Before a letter that is ruled out.
NOT = (
    r"(?:\b(?:not|cannot|never|neither|nor|none of|without|rather than|instead of|other than|except|unlike|over|versus|"
    r"vs|exclud\w*|eliminat\w*|rul\w+ out|reject\w*|discard\w*|nicht|pas|não|không phải|не)\b|n't\b|不是|并非|而非|"
    r"排除|除了|除去|不选|不能选|不能是|不)\.?"
    rf"\s{{0,3}}(?:(?:be|is|choose|pick|select|the|both|either|just|only|{OPTION})\s?){{0,3}}"
)
# After a letter that is ruled out.
IS_WRONG = (
    r"(?:(?:项|項|选项|選項|が|는|가|이|은|也|都|均)\s?)?(?:"
    r"(?:is|are|was|were|does|do|did|can|could|would|will|has|have)\s?(?:not|n't)\b|cannot\b|fails?\b|"
    r"(?:(?:is|are|was|were|seems?|looks?)\s)?(?:both |all |also |clearly |just |simply |too |partially |then )?"
    r"(?:wrong|incorrect|false|invalid|excluded|eliminated|ruled out|irrelevant|out|untrue|implausible)\b|"
    r"[:.]\s?(?:incorrect|wrong|false)(?=[.,;\n]|$| because| since| as)|"
    r"不(?!是[A-Z])|错|有误|誤|排除|无关|"
    r"(?:ist |es |est |é |è |sind |son |sont )?(?:falsch|incorrect[ao]|incorreta?|fals[ao]|faux|fausse|errónea?|"
    r"errad[ao]|sbagliat[ao]|nicht)|неверн|неправ|yanlış|salah\b|sai\b|không|ผิด|ไม่|틀|오답|아니|خاط|غير|गलत)"
)
# Before a letter that is part of a name, unless this or that precedes it: `in this case C`.
NAME = (
    r"vitamin|hepatitis|group|case|figure|fig\.|table|chart|graph|diagram|type|class|category|grade|level|plan|point|"
    r"vertex|angle|line|segment|circle|triangle|matrix|vector|event|variable|node|step|stage|phase|section|appendix|"
    r"scenario|experiment|sample|team|person|player|patient|student|company|firm|city|town|country|region|zone|"
    r"product|machine|box|compound|substance|element|gene|protein|influenza|factor|series"
)
# Before several letters, of which none is chosen.
SEVERAL_NAMES = (
    rf"(?:{NAME}|option|choice|letter|alternative|statement|item|answer)s|boxes|classes|cities|companies|matrices|"
    r"vertices|categories|countries|people"
)
# Letters that are words in some language, and what may follow them as letters. I is a pronoun before any word.
WORDS = "AEIOUY"
FOLLOWS_A_LETTER = (
    r"is|are|was|were|and|or|nor|but|because|since|as|so|while|would|could|can|cannot|must|should|does|did|do|has|fails|"
    r"seems|works|fits|with|rather|instead|not|over|which|due|based|from|if|when|here|porque|es|pois|car|est|weil|ist|und|y|"
    r"e|o|perché|adalah|karena|vì|là|omdat"
)
